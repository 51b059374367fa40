"""What is asked of an owner of records, and what comes back: both sides of the owner's socket share this room."""
