"""`python -m batchsim`."""

from batchsim.cli import main

if __name__ == "__main__":
    main()
