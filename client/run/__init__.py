"""A run: its file, bundle, public record, phases, and the states that follow from them."""
