"""Find faster or smaller variants of a program: proposed, exported, measured, recommended."""
