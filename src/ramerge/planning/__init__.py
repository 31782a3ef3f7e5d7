"""Plans: made from headers alone, and complete before the first weight is read."""
