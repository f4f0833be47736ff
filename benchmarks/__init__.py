"""What Mainstem costs, each figure a ratio to a baseline that is taken in the same run."""
