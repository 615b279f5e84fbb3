"""What the operators ask of their arguments: the words of errors are the same in each."""
