"""A worked example of each kind of stream; docs/streams.md shows them."""
