"""Models by name, or from a user's file; PyTorch is imported when one is loaded."""
