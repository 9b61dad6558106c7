"""`toktier-operator`: the environment is its only input (docs/decisions/0008-operator.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from .config import read
from .handlers.operator import run


def main() -> int:
    """The process's exit status: 0 after SIGTERM, 2 if the environment makes no sense."""
    logging.basicConfig(
        level=os.environ.get("TOKTIER_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for chatty in ("kopf.objects", "kopf._core.engines.activities", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        config = read(os.environ)
    except ValueError as error:
        print(f"toktier-operator: {error}", file=sys.stderr)
        return 2
    asyncio.run(run(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
