"""Rules that combine workers' gradients, some of them faulty: rows come in, and one vector goes out."""
