# Matplotlib's own types are unknown wherever it passes options on: whatever it has may be used.
from typing import Any, TypeAlias

Axes: TypeAlias = Any
