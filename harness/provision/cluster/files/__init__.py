"""Ready-made files that bring up Ray clusters, and what tells a mistake in them before it costs anything."""
