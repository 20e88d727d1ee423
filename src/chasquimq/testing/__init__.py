"""Tools that try programs which use the queue; nothing else in the package imports them."""
