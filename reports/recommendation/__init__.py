"""Which strategy to take: who may win, who cannot be told apart, and what is said of it for each goal."""
