"""Everything that is jitted: plain arrays in, arrays out, no validation and no labels."""
