"""What a root holds, for people: history, density, differences, proofs. Behind the commands."""
