# Matplotlib's own types are unknown wherever it passes options on: whatever it has may be used.
from typing import Any

def __getattr__(name: str) -> Any: ...  # pyright: ignore[reportIncompleteStub]  as said above
