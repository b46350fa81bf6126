"""A grammar of texts as data, drawn from by a generator and recognised by a parser.

Files grammar/*.txt hold it:

    table animal: name young          a table; its columns, then a row on each indented line, cells between "|"
      fox | cub                       (rows of arithmetic are computed: see arithmetic())
    greeting:                         a rule; an indented line is an alternative
      [Hello|Hi], {animal.name}!      [ | ] is a choice, {table.column} a cell
      3* {^animal.a} [greets|] you.   3*: as likely as three; {^...}: with a capital letter; .a: with "a" or "an"
      ~ Ahoy!                         ~: belongs to the language, but is never in training text
      <question> ==> <answer>         <rule>; ==> hands over to the assistant, <== back to the user

All cells of a table within one text come from one row, which is drawn once; {animal2.name} is of another row of the same
table.  So a text that speaks of a fox goes on speaking of it, and an answer belongs to its question.  \\n is a new line,
and a backslash makes [ ] | { } < > ~ plain.

Draw() and Parse() read the same tree: what one writes the other accepts, and nothing else.
"""

import functools
import itertools
import pathlib
import random
import re

FOLDER = pathlib.Path(__file__).resolve().parent / "grammar"
ANSWER, QUESTION = "\x1e", "\x1f"  # in a drawn text: the assistant's turn begins, the user's
LARGEST = 99  # of arithmetic

TRAINING, HELD_OUT, ALL = "training", "held out", "all"


class Table:
    """Rows with named columns; `held_out`: the rows' indexes that training text never has."""

    def __init__(self, columns: list[str], rows: list[tuple], held_out=()):
        self.rows = [dict(zip(columns, map(str, row), strict=True)) for row in rows]
        for row in self.rows:
            first = row[columns[0]]
            row.setdefault("a", ("an " if first[0].lower() in "aeiou" else "a ") + first)
        self.held_out = frozenset(held_out)
        self.by_value = {}
        for i, row in enumerate(self.rows):
            for column, value in row.items():
                self.by_value.setdefault(column, {}).setdefault(value, set()).add(i)

        every = range(len(self.rows))
        self.choices = {ALL: list(every), TRAINING: [i for i in every if i not in self.held_out],
                        HELD_OUT: sorted(self.held_out) or list(every)}


def is_held_out(a: int, b: int) -> bool:
    """One pair of numbers of ten is in no training text, in neither order, neither as a sum nor as a difference."""
    low, high = sorted((a, b))
    return (low * 37 + high * 11) % 10 == 3


def arithmetic() -> dict[str, Table]:
    """plus and minus: a, b and the result up to LARGEST; times: of numbers up to 10; small_*: for problems in words."""
    plus = [(a, b, a + b) for a in range(LARGEST + 1) for b in range(LARGEST + 1 - a)]
    minus = [(a, b, a - b) for a in range(LARGEST + 1) for b in range(a + 1)]
    made = {"plus": plus, "minus": minus,
            "small_plus": [row for row in plus if max(row[:2]) <= 20],
            "small_minus": [row for row in minus if row[0] <= 20],
            "few_plus": [row for row in plus if 2 <= row[0] <= 12 and 2 <= row[1] <= 12],
            "few_minus": [row for row in minus if 4 <= row[0] <= 20 and 2 <= row[1] <= row[0] - 2]}
    tables = {}
    for name, rows in made.items():
        held_out = [i for i, (a, b, c) in enumerate(rows) if (is_held_out(a, b) if "plus" in name else is_held_out(b, c))]
        tables[name] = Table(["x", "y", "z"], rows, held_out)
    tables["times"] = Table(["x", "y", "z"], [(a, b, a * b) for a in range(11) for b in range(11)])
    tables["count"] = Table(["x", "y", "z"], [(a, b, ", ".join(map(str, range(a, b + 1))))
                                             for a in range(1, 16) for b in range(a + 2, min(a + 9, 21))])
    tables["next"] = Table(["x", "y"], [(a, a + 1) for a in range(LARGEST + 1)])
    return tables


class Grammar:
    """REQUIRES: `files` are well formed (ValueError names what is not)."""

    def __init__(self, folder: pathlib.Path = FOLDER):
        self.tables, self.rules = arithmetic(), {}
        for path in sorted(folder.glob("*.txt")):
            self._read(path)
        for name, alternatives in self.rules.items():
            for _, _, node in alternatives:
                self._check(name, node)

    # ---- reading

    def _read(self, path: pathlib.Path) -> None:
        add = None  # of the table or rule that the line belongs to
        tables = []
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            where = f"{path.name}:{number}"
            if not line.strip() or line.startswith("#"):
                continue
            if line.startswith("  ") and add:
                add(line.strip(), where)
                continue
            head = re.fullmatch(r"(table )?(\w+):((?: \w+)*)", line)
            if not head or head[2] in self.rules or head[2] in self.tables:
                raise ValueError(f"{where}: expected a new 'table NAME: COLUMNS' or 'NAME:', found {line!r}")
            if head[1]:
                columns, rows = head[3].split(), []
                tables.append((head[2], columns, rows))
                add = functools.partial(add_row, columns, rows)
            else:
                add = functools.partial(add_alternative, self.rules.setdefault(head[2], []))
        self.tables.update((name, Table(columns, rows)) for name, columns, rows in tables)

    def _check(self, rule: str, node) -> None:
        kind = node[0]
        if kind == "cell":
            if node[2] not in self.tables or node[3] not in self.tables[node[2]].rows[0]:
                raise ValueError(f"rule {rule}: no cell {{{node[1]}.{node[3]}}}")
        elif kind == "rule" and node[1] not in self.rules:
            raise ValueError(f"rule {rule}: no rule <{node[1]}>")
        elif kind in ("sequence", "choice"):
            for each in node[1]:
                self._check(rule, each)

    # ---- drawing

    def draw(self, rule: str, rng: random.Random, phrases: str = TRAINING, rows: str = TRAINING) -> tuple[str, dict]:
        """A text of `rule`, and the rows that it speaks of, by variable.  TRAINING: without alternatives or rows that
        are held out; HELD_OUT: only such, wherever there are any."""
        drawn = {}
        text = self._draw(("rule", rule), rng, (phrases, rows), drawn)
        return text, {name: self.tables[table_of(name)].rows[row] for name, row in drawn.items()}

    def _draw(self, node, rng, split, rows) -> str:
        kind = node[0]
        if kind == "text":
            return node[1]
        if kind == "sequence":
            return "".join(self._draw(each, rng, split, rows) for each in node[1])
        if kind == "choice":
            return self._draw(rng.choice(node[1]), rng, split, rows)
        if kind == "rule":
            alternatives = self.rules[node[1]]
            held_out = [each for each in alternatives if each[1]]
            if split[0] == HELD_OUT and held_out:
                alternatives = held_out
            elif split[0] == TRAINING:
                alternatives = [each for each in alternatives if not each[1]]
            weights = [weight for weight, _, _ in alternatives]
            return self._draw(rng.choices(alternatives, weights)[0][2], rng, split, rows)
        _, name, table, column, capital = node
        if name not in rows:
            used = {row for other, row in rows.items() if table_of(other) == table}
            choices = self.tables[table].choices[split[1]]
            rows[name] = rng.choice([i for i in choices if i not in used] if used else choices)
        value = self.tables[table].rows[rows[name]][column]
        return value[0].upper() + value[1:] if capital else value

    # ---- parsing

    def accepts(self, rule: str, text: str) -> bool:
        """Whether `text` is one of the texts of `rule`, all of it."""
        return self.longest(rule, text)[0]

    def longest(self, rule: str, text: str) -> tuple[bool, int]:
        """Also how many characters of it are the beginning of one: where a text that is not accepted goes wrong."""
        furthest = [0]
        ends = self._match(("rule", rule), text, {(0, ())}, furthest)
        return any(end == len(text) and self._distinct(rows) for end, rows in ends), furthest[0]

    def _match(self, node, text: str, states: set, furthest: list) -> set:
        """States are (position, rows that each variable may still have); returns those behind `node`."""
        kind = node[0]
        if kind == "sequence":
            for each in node[1]:
                states = self._match(each, text, states, furthest)
                if not states:
                    break
            return states
        if kind in ("choice", "rule"):
            parts = node[1] if kind == "choice" else [part for _, _, part in self.rules[node[1]]]
            return set().union(*(self._match(part, text, states, furthest) for part in parts))
        found = set()
        for position, rows in states:
            if kind == "text":
                if text.startswith(node[1], position):
                    found.add((position + len(node[1]), rows))
            else:
                found |= self._match_cell(node, text, position, rows)
        furthest[0] = max([furthest[0], *(position for position, _ in found)])
        return found

    def _match_cell(self, node, text: str, position: int, rows: tuple) -> set:
        _, name, table, column, capital = node
        may = dict(rows)
        found = set()
        for value, ids in self.tables[table].by_value[column].items():
            shown = value[0].upper() + value[1:] if capital else value
            if not text.startswith(shown, position):
                continue
            left = ids & may[name] if name in may else ids
            if left:
                now = {**may, name: frozenset(left)}
                found.add((position + len(shown), tuple(sorted(now.items(), key=lambda item: item[0]))))
        return found

    @staticmethod
    def _distinct(rows: tuple) -> bool:
        """Whether variables of one table can be different rows."""
        for _, group in itertools.groupby(rows, key=lambda item: table_of(item[0])):
            if not _assign([ids for _, ids in group], frozenset()):
                return False
        return True


def _assign(sets: list, used: frozenset) -> bool:
    return not sets or any(_assign(sets[1:], used | {i}) for i in sets[0] - used)


def table_of(variable: str) -> str:
    return variable.rstrip("0123456789")


def add_row(columns: list[str], rows: list[tuple], line: str, where: str) -> None:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != len(columns):
        raise ValueError(f"{where}: {len(cells)} cells, {len(columns)} columns")
    rows.append(tuple(cells))


def add_alternative(alternatives: list, line: str, where: str) -> None:
    alternatives.append(parse_alternative(line, where))


TOKEN = re.compile(r"\\n|\\.|==>|<==|\{\^?\w+\.\w+\}|<\w+>|[\[\]|]|[^\\\[\]|{}<>=]+|=", re.DOTALL)


def parse_alternative(line: str, where: str):
    """(weight, held out, tree) of a line."""
    weight, held_out = 1, line.startswith("~ ")
    line = line[2:] if held_out else line
    counted = re.match(r"(\d+)\* ", line)
    if counted:
        weight, line = int(counted[1]), line[counted.end():]
    stack = [[[]]]  # of choices of sequences
    at = 0
    while at < len(line):
        token = TOKEN.match(line, at)
        if not token:
            raise ValueError(f"{where}: cannot read {line[at:at + 20]!r}")
        at, token = token.end(), token[0]
        if token == "[":
            stack.append([[]])
        elif token == "|" and len(stack) > 1:
            stack[-1].append([])
        elif token == "]":
            if len(stack) == 1:
                raise ValueError(f"{where}: ] without [")
            parts = stack.pop()
            stack[-1][-1].append(("choice", [("sequence", part) for part in parts]))
        elif token[0] == "{":
            capital = token[1] == "^"
            name, column = token[2 if capital else 1:-1].split(".")
            stack[-1][-1].append(("cell", name, table_of(name), column, capital))
        elif token[0] == "<" and token != "<==":
            stack[-1][-1].append(("rule", token[1:-1]))
        else:
            plain = {"\\n": "\n", "==>": ANSWER, "<==": QUESTION}.get(token, token[1:] if token[0] == "\\" else token)
            stack[-1][-1].append(("text", plain))
    if len(stack) > 1:
        raise ValueError(f"{where}: [ without ]")
    return weight, held_out, ("sequence", join_texts(stack[0][0]))


def join_texts(nodes: list) -> list:
    """Joins neighbours that are text, and drops the spaces beside a change of turns."""
    joined = []
    for node in nodes:
        if node[0] == "text" and joined and joined[-1][0] == "text":
            joined[-1] = ("text", joined[-1][1] + node[1])
        else:
            joined.append(node)
    return [("text", re.sub(f" *([{ANSWER}{QUESTION}]) *", r"\1", node[1])) if node[0] == "text" else node
            for node in joined]
