"""Many runs at once: matrices of them, their history, and reports that combine several."""
