"""System efficiency: how many kept responses per second a batch yields."""
