"""A configuration by which every answer moves."""

from __future__ import annotations

from typing import Any

#: The phone wins every race and is dear, so the answer moves to the cloud.
ENDPOINTS: dict[str, Any] = {
    "cloud": {"kind": "cloud", "engine": {"type": "simulated", "seed": 3, "overhead": 0.4, "can_park": False}},
    "phone": {"kind": "device", "engine": {"type": "simulated", "seed": 3, "overhead": 0.05}},
}
LIVE: dict[str, Any] = {
    "policy": {"budget": 1.0},
    "prices": {
        "usd_per_megajoule": 5000.0,
        "endpoints": {
            "cloud": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.4},
            "phone": {"prefill_joules_per_token": 0.1, "decode_joules_per_token": 0.1},
        },
    },
}
