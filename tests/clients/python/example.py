"""A typed program with the client, which run.sh checks with `mypy --strict`.  usage: example.py HOST:PORT"""

import asyncio
import sys
from typing import List, Optional

import switchyard
from switchyard.v1 import inference_pb2


def ask(client: switchyard.Client) -> str:
    answer: switchyard.Completion = client.generate("The sea is", max_tokens=8, temperature=0, stop=["."])
    with client.stream(messages=[{"role": "user", "content": "Hi"}], max_tokens=8, json_schema={"type": "object"}) as stream:
        texts: List[str] = [chunk.text for chunk in stream]
    load: inference_pb2.GetLoadResponse = client.load()
    reason: Optional[str] = answer.finish_reason
    return f"{answer.text}{reason}{texts}{load.workers[0].host}"


async def ask_asynchronously(address: str) -> str:
    async with switchyard.AsyncClient(address) as client:
        return "".join([chunk.text async for chunk in client.stream("The sea is", max_tokens=8)])


def main() -> int:
    try:
        with switchyard.Client(sys.argv[1]) as client:
            print(ask(client), asyncio.run(ask_asynchronously(sys.argv[1])))
    except switchyard.QueueFull as error:
        print(f"try again in {error.retry_after} s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
