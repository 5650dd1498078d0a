"""Clusters: devices with their sources, links, and how people write them down."""
