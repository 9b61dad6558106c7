"""`make mutants`: faults planted in our own code, one by one, and whether the suite finds each."""
