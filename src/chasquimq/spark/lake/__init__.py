"""A lake: Delta tables in a folder, written, read and kept in shape."""
