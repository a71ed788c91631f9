"""Record processing: each record once even if it is delivered again, and in parallel even where order matters."""
