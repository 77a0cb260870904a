"""Where workers come from: providers behind one protocol, and the removal of what they leave."""
