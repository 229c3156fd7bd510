"""From an analysed run to its documents and pages."""
