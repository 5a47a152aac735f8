"""What runs inside vLLM's own processes. Imported there, and by the engine that starts them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any, Final

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

# Seconds that vLLM's engine process has to end in an orderly way.
_GRACE: Final = 10.0


class TetheredExecutor(MultiprocExecutor):  # type: ignore[misc] # vLLM is not there where types are checked
    """Ends vLLM's engine process when the replica that started it is gone, however it went.

    vLLM's workers follow their engine process by themselves, but that one would wait for requests for ever.
    """

    def __init__(self, vllm_config: Any) -> None:
        threading.Thread(target=_follow_parent, name="follow-replica", daemon=True).start()
        super().__init__(vllm_config)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
