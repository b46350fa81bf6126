#!/usr/bin/env python3
"""Makes cases.jsonl: schemas, walks under their constraints that a validator found valid, and values that it found valid or not.

usage: make.py path/to/constraint_walks > cases.jsonl     (needs jsonschema with its format checkers: pip install 'jsonschema[format]')
Prints to stderr how many schemas are refused, and every walk that is not valid: there must be none.
"""
import json
import subprocess
import sys
from decimal import Decimal

import jsonschema

WALKS = 4
S = {"type": "string"}
I = {"type": "integer"}


def obj(properties, required=None, **more):
    out = {"type": "object", "properties": properties}
    if required is not None:
        out["required"] = required
    out.update(more)
    return out


def strict(**properties):
    """As OpenAI's strict mode wants objects."""
    return obj(properties, list(properties), additionalProperties=False)


# (schema, valid values, values that are not valid); the values must come in the schema's order of properties.
CASES = [
    # OpenAI's documented subset: types, enum, anyOf, nesting, $defs, recursion, and limits of strings, numbers, arrays
    (strict(name=S, date=S, participants={"type": "array", "items": S}), [{"name": "Science Fair", "date": "Friday", "participants": ["Alice", "Bob"]}], [{"name": "x"}, {"name": 1, "date": "", "participants": []}]),
    (strict(steps={"type": "array", "items": strict(explanation=S, output=S)}, final_answer=S), [{"steps": [{"explanation": "a", "output": "b"}], "final_answer": "c"}, {"steps": [], "final_answer": "\n\"\\\u00e9\u4e2d"}], [{"steps": [{}], "final_answer": "c"}]),
    (strict(value={"type": "number"}, flag={"type": "boolean"}, none={"type": "null"}), [{"value": -1.5e10, "flag": True, "none": None}, {"value": 0, "flag": False, "none": None}], [{"value": "1", "flag": True, "none": None}]),
    (strict(color={"type": "string", "enum": ["red", "green", "blue"]}), [{"color": "red"}], [{"color": "yellow"}, {"color": "re"}]),
    (strict(x={"type": ["string", "null"]}), [{"x": None}, {"x": "a"}], [{"x": 1}]),
    (strict(item={"anyOf": [strict(name=S, age=I), strict(number=S, street=S, city=S)]}), [{"item": {"name": "a", "age": 3}}, {"item": {"number": "1", "street": "s", "city": "c"}}], [{"item": {"name": "a"}}]),
    ({**strict(steps={"type": "array", "items": {"$ref": "#/$defs/step"}}), "$defs": {"step": strict(explanation=S, output=S)}}, [{"steps": [{"explanation": "e", "output": "o"}]}], [{"steps": [1]}]),
    ({**strict(linked_list={"$ref": "#/$defs/node"}), "$defs": {"node": strict(value={"type": "number"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})}}, [{"linked_list": {"value": 1, "next": {"value": 2, "next": None}}}], [{"linked_list": {"value": 1, "next": 3}}]),
    (strict(type={"enum": ["div", "button"]}, label=S, children={"type": "array", "items": {"$ref": "#"}}), [{"type": "div", "label": "", "children": [{"type": "button", "label": "x", "children": []}]}], [{"type": "a", "label": "", "children": []}]),
    (strict(username={"type": "string", "pattern": "^@[a-zA-Z0-9_]+$"}, email={"type": "string", "format": "email"}), [{"username": "@ab_1", "email": "a@example.com"}], [{"username": "ab", "email": "a@example.com"}]),
    (strict(location=S, temperature={"type": "number", "minimum": -130, "maximum": 130}, days={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 8}), [{"location": "", "temperature": -130, "days": 7}, {"location": "x", "temperature": 99.25, "days": 1}], [{"location": "", "temperature": -130.5, "days": 1}, {"location": "", "temperature": 0, "days": 8}]),
    (strict(step={"type": "number", "multipleOf": 0.25}, n={"type": "integer", "multipleOf": 5}), [{"step": 1.75, "n": -15}], [{"step": 0.3, "n": 5}, {"step": 1, "n": 7}]),
    (strict(list={"type": "array", "items": I, "minItems": 2, "maxItems": 3}), [{"list": [1, 2]}, {"list": [1, 2, 3]}], [{"list": [1]}, {"list": [1, 2, 3, 4]}]),
    *[(strict(v={"type": "string", "format": name}), [{"v": good}], [{"v": bad}]) for name, good, bad in [
        ("date-time", "2024-02-28T23:59:59Z", "2024-02-30T00:00:00Z"), ("time", "10:00:00+01:00", "25:00:00Z"), ("date", "2023-12-31", "2023-13-01"),
        ("duration", "P1DT2H", "1D"), ("hostname", "a-b.example.org", "-a"), ("ipv4", "192.168.0.1", "256.1.1.1"), ("ipv6", "fe80::1", "fe80::g"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123")]],
    # strings
    ({"type": "string"}, ["", "a", "\u00e9\U0001f600", "line\nbreak"], [1, None, ["a"]]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abcd", "\u4e2d\u6587"], ["a", "abcde", ""]),
    ({"type": "string", "minLength": 3}, ["abc", "abcdef"], ["ab"]),
    ({"type": "string", "maxLength": 200}, ["", "x" * 200], ["x" * 201]),
    ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, ["ABC-1234"], ["ABC-123", "abc-1234", "xABC-1234"]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"]),
    ({"type": "string", "pattern": "^(yes|no)$"}, ["yes", "no"], ["yesno", "maybe"]),
    ({"type": "string", "pattern": "^\\d{3}(-\\d{2})?$"}, ["123", "123-45"], ["123-4"]),
    ({"type": "string", "pattern": "^[^\"\\\\]*$"}, ["abc"], ["a\"b", "a\\b"]),
    ({"type": "string", "pattern": "^a\"\\\\b$"}, ["a\"\\b"], ["ab"]),
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}, ["abc"], ["abcdef", ""]),
    ({"type": "string", "pattern": "^#([0-9a-fA-F]{6}|[0-9a-fA-F]{3})$"}, ["#fff", "#a0B1c2"], ["#ffff"]),
    ({"type": "string", "pattern": "^(?:(?:a|b)+c?){1,3}$"}, ["abc", "aabcb"], ["c"]),
    ({"type": "string", "pattern": "^\\S+@\\S+$"}, ["a@b"], ["a b@c"]),
    ({"type": "string", "pattern": "^\\$[0-9]+\\.[0-9]{2}$"}, ["$1.50"], ["1.50", "$1.5"]),
    ({"type": "string", "pattern": "^[\\w.-]+$"}, ["a.b-c_d"], ["a b"]),
    ({"const": "x\"y"}, ["x\"y"], ["xy"]),
    ({"enum": ["a", "ab", "abc", 1, 1.5, None, True, {"k": [1]}]}, ["a", "ab", "abc", 1, 1.5, None, True], ["b", 2, False]),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1, "1"]),
    # numbers
    ({"type": "integer"}, [0, -1, 123456789], [1.5, "1"]),
    ({"type": "number"}, [0, -1.25, 1e5, 3], ["1", None]),
    *[({"type": "integer", "minimum": low, "maximum": high}, [low, high, (low + high) // 2], [low - 1, high + 1]) for low, high in [(0, 9), (1, 100), (-5, 5), (-120, -7), (10, 10), (99, 1001), (0, 4294967295), (-32768, 32767), (1900, 2100)]],
    ({"type": "integer", "minimum": 18}, [18, 19, 100, 12345678], [17, 0, -18]),
    ({"type": "integer", "maximum": -3}, [-3, -100], [-2, 0, 5]),
    ({"type": "integer", "exclusiveMinimum": 0}, [1, 10], [0, -1]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.999], [1.1, -0.1]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, [0.25, 0.49], [0, 0.5]),
    ({"type": "number", "minimum": -90, "maximum": 90}, [-90, 90, 12.34], [90.01, -91]),
    ({"type": "number", "minimum": 1.5, "maximum": 2.25}, [1.5, 2.25, 2], [1.49, 2.26]),
    ({"type": "number", "minimum": 0.001}, [0.001, 12], [0, 0.0001]),
    ({"type": "number", "multipleOf": 0.01, "minimum": 0}, [0.25, 3, 19.99], [0.001]),
    ({"type": "integer", "multipleOf": 3}, [0, 3, -9, 300], [1, 10]),
    ({"type": "integer", "multipleOf": 100, "minimum": 150, "maximum": 1050}, [200, 1000], [150, 100, 1100]),
    ({"type": "integer", "minimum": 0, "exclusiveMaximum": 10, "multipleOf": 2}, [0, 8], [10, 3]),
    ({"type": ["integer", "string"], "minimum": 5, "maxLength": 2}, [5, "ab"], [4, "abc"]),
    # arrays
    ({"type": "array"}, [[], [1, "a", [None]]], [{}, 1]),
    ({"type": "array", "items": {"type": "boolean"}}, [[], [True, False]], [[1]]),
    ({"type": "array", "minItems": 1, "items": I}, [[1], [1, 2, 3]], [[]]),
    ({"type": "array", "maxItems": 2, "items": I}, [[], [1, 2]], [[1, 2, 3]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}}, [[1, 2.5, 3]], [[1, 2]]),
    ({"type": "array", "items": {"type": "array", "items": I, "minItems": 1}}, [[], [[1], [2, 3]]], [[[]]]),
    ({"type": "array", "prefixItems": [S, I], "items": False}, [[], ["a"], ["a", 1]], [["a", 1, 2], [1]]),
    ({"type": "array", "prefixItems": [S, I], "items": {"type": "boolean"}, "minItems": 2}, [["a", 1], ["a", 1, True]], [["a"], ["a", 1, 2]]),
    ({"type": "array", "prefixItems": [S, I], "minItems": 2, "maxItems": 2}, [["a", 1]], [["a"]]),
    ({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 1, "uniqueItems": True}, [[], [1]], [[1, 2]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [S, I], "additionalItems": False}, [["a", 1]], [["a", 1, 2]]),
    # objects
    ({"type": "object"}, [{}, {"a": [1]}], [[], 1]),
    (obj({"a": S, "b": I}), [{}, {"a": "x"}, {"b": 1}, {"a": "x", "b": 1}], [{"a": 1}]),
    (obj({"a": S, "b": I, "c": {"type": "null"}}, ["b"]), [{"b": 1}, {"a": "x", "b": 1}, {"b": 1, "c": None}], [{"a": "x"}]),
    (obj({"a": S, "b": I}, ["a"], additionalProperties=False), [{"a": "x"}], [{"a": "x", "z": 1}]),
    (obj({"a": S}, ["a"], additionalProperties={"type": "integer"}), [{"a": "x"}, {"a": "x", "aa": 1, "": 2}], [{"a": "x", "b": "y"}, {"a": 1}]),
    (obj({}, additionalProperties={"type": "number"}), [{}, {"x": 1.5}], [{"x": "1"}]),
    ({"type": "object", "additionalProperties": S, "minProperties": 1, "maxProperties": 2}, [{"a": "b"}, {"a": "b", "c": "d"}], [{}, {"a": "1", "b": "2", "c": "3"}]),
    (obj({"a": I, "b": I}, minProperties=1), [{"a": 1}, {"b": 1}], [{}]),
    ({"type": "object", "required": ["id"], "additionalProperties": True}, [{"id": 1}, {"id": "x"}], [{}]),
    ({"type": "object", "required": ["id"]}, [{"id": {}}], [{"a": 1}]),
    ({"type": "object", "patternProperties": {"^x-": S}, "additionalProperties": False}, [{}, {"x-a": "b"}], [{"a": "b"}, {"x-a": 1}]),
    ({"type": "object", "patternProperties": {"^[0-9]+$": I}}, [{"12": 1}], [{"12": "a"}]),
    (obj({"name": S}, ["name"], patternProperties={"^[0-9]+$": I}, additionalProperties=False), [{"name": "a"}, {"name": "a", "1": 2}], [{"name": "a", "b": 1}]),
    (obj({"x-1": {}}, patternProperties={"^x-": S}), [{"x-1": "a"}], [{"x-1": 1}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": I}, [{"ab": 1}], [{"AB": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}], [{"c": 1}]),
    (obj({"\u00e9t\u00e9": I, "a\"b": S}, ["\u00e9t\u00e9", "a\"b"]), [{"\u00e9t\u00e9": 1, "a\"b": "x"}], [{"a\"b": "x"}]),
    (obj({"a": obj({"b": obj({"c": obj({"d": I}, ["d"])}, ["c"])}, ["b"])}, ["a"]), [{"a": {"b": {"c": {"d": 1}}}}], [{"a": {"b": {"c": {}}}}]),
    (obj({"never": False, "a": I}, additionalProperties=False), [{"a": 1}, {}], [{"never": 1}]),
    # without a type
    ({"properties": {"a": I}, "required": ["a"]}, [{"a": 1}], [{"a": "x"}]),
    ({"minimum": 3}, [3, 4.5], [2]),
    ({"items": S}, [["a"]], [[1]]),
    (True, [1, "a", None, {}], []),
    ({}, [1, "a", None, [{}]], []),
    ({"title": "t", "description": "d", "default": 1, "examples": [2]}, [1, "x"], []),
    # combinations
    ({"anyOf": [S, I]}, ["a", 1], [1.5, None]),
    ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^x+$"}]}, ["ab", "xxxx"], ["abc"]),
    ({"oneOf": [S, I, {"type": "null"}]}, ["a", 1, None], [1.5, []]),
    ({"oneOf": [strict(kind={"const": "a"}, x=I), strict(kind={"const": "b"}, y=S)]}, [{"kind": "a", "x": 1}, {"kind": "b", "y": ""}], [{"kind": "a", "y": ""}]),
    ({"oneOf": [obj({"a": I}, ["a"], additionalProperties=False), obj({"b": I}, ["b"], additionalProperties=False)]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {}]),
    ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, [1, 3], [4]),
    ({"allOf": [obj({"a": S}, ["a"]), obj({"b": I}, ["b"])]}, [{"a": "x", "b": 1}], [{"a": "x"}, {"b": 1}]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 4, 5], [2, 6]),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]}, [2, 3], [1, 4]),
    ({"allOf": [{"type": ["string", "null"]}, {"type": ["string", "integer"]}]}, ["a"], [None, 1]),
    ({"type": "object", "properties": {"a": I}, "required": ["a"], "anyOf": [{"required": ["b"], "properties": {"b": S}}, {"required": ["c"], "properties": {"c": S}}]}, [{"a": 1, "b": "x"}, {"a": 1, "c": "x"}], [{"a": 1}]),
    ({"type": "string", "anyOf": [{"maxLength": 2}, {"enum": ["long one"]}]}, ["ab", "long one"], ["abc", 1]),
    ({"allOf": [{"anyOf": [S, I]}, {"anyOf": [I, {"type": "null"}]}]}, [1], ["a", None]),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "array", "items": {"$ref": "#/definitions/b"}}, "b": {"enum": ["x"]}}}, [[], ["x", "x"]], [["y"]]),
    ({"$defs": {"base": obj({"id": I}, ["id"])}, "allOf": [{"$ref": "#/$defs/base"}, obj({"name": S}, ["name"])]}, [{"id": 1, "name": "x"}], [{"id": 1}]),
    ({"$defs": {"s": S}, "$ref": "#/$defs/s", "maxLength": 3}, ["abc"], ["abcd", 1]),
    ({"$defs": {"tree": obj({"value": I, "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}, ["value"], additionalProperties=False)}, "$ref": "#/$defs/tree"}, [{"value": 1}, {"value": 1, "left": {"value": 2, "right": {"value": 3}}}], [{"left": {"value": 1}}]),
    ({"$defs": {"json": {"anyOf": [S, {"type": "number"}, {"type": "array", "items": {"$ref": "#/$defs/json"}}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}}]}}, "$ref": "#/$defs/json"}, ["a", [1, {"k": []}]], [None, True]),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, [], []),
    # as programs have them
    (obj({"openapi": {"type": "string", "pattern": "^3\\.\\d+\\.\\d+$"}, "info": obj({"title": S, "version": S}, ["title", "version"]), "paths": {"type": "object", "additionalProperties": {"type": "object"}}}, ["openapi", "info", "paths"]), [{"openapi": "3.0.1", "info": {"title": "t", "version": "1"}, "paths": {"/a": {}}}], [{"openapi": "2.0.0", "info": {"title": "t", "version": "1"}, "paths": {}}]),
    (obj({"name": {"type": "string", "minLength": 1, "maxLength": 214}, "version": {"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+$"}, "private": {"type": "boolean"}, "scripts": {"type": "object", "additionalProperties": S}, "keywords": {"type": "array", "items": S}}, ["name", "version"]), [{"name": "x", "version": "1.2.3", "scripts": {"test": "true"}}], [{"name": "", "version": "1.2.3"}]),
    (obj({"latitude": {"type": "number", "minimum": -90, "maximum": 90}, "longitude": {"type": "number", "minimum": -180, "maximum": 180}}, ["latitude", "longitude"]), [{"latitude": 48.858093, "longitude": 2.294694}], [{"latitude": 148, "longitude": 2}]),
    (obj({"fruits": {"type": "array", "items": S}, "vegetables": {"type": "array", "items": obj({"veggieName": S, "veggieLike": {"type": "boolean"}}, ["veggieName", "veggieLike"])}}), [{"fruits": ["apple"], "vegetables": [{"veggieName": "potato", "veggieLike": True}]}], [{"vegetables": [{"veggieName": "potato"}]}]),
    (obj({"orderId": {"type": "string", "pattern": "^ORD-[0-9]{6}$"}, "items": {"type": "array", "minItems": 1, "items": obj({"sku": S, "quantity": {"type": "integer", "minimum": 1, "maximum": 999}, "price": {"type": "number", "minimum": 0, "multipleOf": 0.01}}, ["sku", "quantity", "price"])}, "status": {"enum": ["new", "paid", "shipped"]}}, ["orderId", "items", "status"]), [{"orderId": "ORD-000123", "items": [{"sku": "a", "quantity": 2, "price": 9.75}], "status": "paid"}], [{"orderId": "ORD-1", "items": [{"sku": "a", "quantity": 2, "price": 9.75}], "status": "paid"}, {"orderId": "ORD-000123", "items": [], "status": "paid"}]),
    (obj({"function": {"const": "get_weather"}, "arguments": strict(location=S, unit={"enum": ["c", "f"]})}, ["function", "arguments"], additionalProperties=False), [{"function": "get_weather", "arguments": {"location": "Paris", "unit": "c"}}], [{"function": "other", "arguments": {"location": "Paris", "unit": "c"}}]),
    (obj({f"p{i}": {"type": ["string", "integer"]} for i in range(40)}), [{}, {"p0": 1, "p39": "x"}], [{"p3": None}]),
    (obj({f"p{i}": I for i in range(30)}, [f"p{i}" for i in range(0, 30, 2)], additionalProperties=False), [{f"p{i}": i for i in range(30)}], [{"p0": 1}]),
    (obj({"geometry": {"oneOf": [strict(type={"const": "Point"}, coordinates={"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}), strict(type={"const": "LineString"}, coordinates={"type": "array", "minItems": 2, "items": {"type": "array", "items": {"type": "number"}, "minItems": 2}})]}}, ["geometry"]), [{"geometry": {"type": "Point", "coordinates": [1, 2.5]}}], [{"geometry": {"type": "Point", "coordinates": [1]}}]),
    (obj({"start": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}, ["start", "at", "id"]), [{"start": "2024-01-31", "at": "2024-01-31T10:00:00.5+02:00", "id": "123e4567-e89b-12d3-a456-426614174000"}], [{"start": "2024-1-31", "at": "2024-01-31T10:00:00Z", "id": "123e4567-e89b-12d3-a456-426614174000"}]),
    (obj({"log": {"type": "array", "items": {"anyOf": [strict(level={"const": "info"}, text=S), strict(level={"const": "error"}, text=S, code=I)]}}}, ["log"]), [{"log": [{"level": "info", "text": "a"}, {"level": "error", "text": "b", "code": 3}]}], [{"log": [{"level": "error", "text": "b"}]}]),
    # refused, or never valid
    ({"not": {"type": "string"}}, [], []),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, [], []),
    ({"type": "array", "items": S, "uniqueItems": True}, [], []),
    ({"type": "array", "contains": I}, [], []),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, [], []),
    ({"oneOf": [I, {"type": "number"}]}, [], []),
    ({"$ref": "https://example.com/other.json"}, [], []),
    ({"type": "string", "pattern": "(?=a)b"}, [], []),
    ({"type": "string", "format": "idn-email"}, [], []),
    ({"type": "text"}, [], []),
    ({"$ref": "#"}, [], []),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, [], []),
    ({"allOf": [S, I]}, [], []),
    ({"enum": []}, [], []),
    (False, [], []),
]


def multiple_of(validator, divisor, instance, schema):
    if validator.is_type(instance, "number") and Decimal(repr(instance)) % Decimal(repr(divisor)) != 0:
        yield jsonschema.ValidationError(f"{instance} is no multiple of {divisor}")


def is_valid(schema, value):
    of_draft = jsonschema.Draft7Validator if isinstance(schema, dict) and "draft-07" in schema.get("$schema", "") else jsonschema.Draft202012Validator
    exact = jsonschema.validators.extend(of_draft, {"multipleOf": multiple_of})
    return exact(schema, format_checker=of_draft.FORMAT_CHECKER).is_valid(value)


def main():
    cases = []
    for schema, valid, invalid in CASES:
        assert all(is_valid(schema, value) for value in valid), (schema, valid)
        assert not any(is_valid(schema, value) for value in invalid), (schema, invalid)
        texts = [json.dumps(v, **how) for v in valid for how in ({"ensure_ascii": False}, {"separators": (",", ":"), "ensure_ascii": False}, {"indent": 2, "ensure_ascii": False})]
        cases.append({"schema": json.dumps(schema), "valid": sorted(set(texts)), "invalid": [json.dumps(v, ensure_ascii=False) for v in invalid]})
    # Enums of objects are written as they are in the schema, without spaces.
    walks = subprocess.run([sys.argv[1], str(WALKS)], input="\n".join(map(json.dumps, cases)), capture_output=True, text=True, check=True)
    bad = refused = 0
    for case, line in zip(cases, walks.stdout.split("\n")):
        out = json.loads(line)
        schema = json.loads(case["schema"])
        if "error" in out:
            refused += 1
            print("refused", case["schema"], out["error"], file=sys.stderr)
        for text in out.get("walks", []):
            try:
                ok = is_valid(schema, json.loads(text))
            except ValueError:
                ok = False
            if not ok:
                bad += 1
                print("NOT VALID", case["schema"], text, file=sys.stderr)
        for text, ok in zip(case["valid"], out.get("takes", [])):
            if not ok:
                print("NOT TAKEN", case["schema"], text, file=sys.stderr)
        for text, ok in zip(case["invalid"], out.get("refuses", [])):
            if not ok:
                print("TAKEN", case["schema"], text, file=sys.stderr)
        print(json.dumps({**case, **{key: out[key] for key in ("error", "walks") if key in out}}))
    print(f"{len(cases)} schemas, {refused} refused, {bad} walks not valid", file=sys.stderr)


if __name__ == "__main__":
    main()
