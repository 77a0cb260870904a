"""Names of nodes that are made from names of variables."""


def node_slug(name: str) -> str:
    """A variable's name with what a node name must not hold replaced by `_`."""
    slug = "".join(c if (c.isalnum() and c.isascii()) or c in "_./-" else "_" for c in name)
    return slug.strip("/") or "unnamed"
