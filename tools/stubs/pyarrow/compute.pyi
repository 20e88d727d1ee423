# Arrow's Python package ships no types: whatever it has may be used, and nothing is checked.
from typing import Any

def __getattr__(name: str) -> Any: ...  # pyright: ignore[reportIncompleteStub]  as said above
