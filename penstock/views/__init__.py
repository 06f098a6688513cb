"""Views by REST: instances that share the partitions of compacted topics, each with a store on its disk."""
