"""A run on real machines: a project for all parties, the processes of each, a rehearsal on one machine, and its status."""
