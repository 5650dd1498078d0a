"""8-bit integers: ranges of values, the formats that follow, layers that compute in them."""
