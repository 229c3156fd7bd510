"""From a model to a ``.pte`` with its ETRecord, inputs and record."""
