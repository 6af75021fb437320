"""`python -m earnest.client.parallel` under torchrun: one process of a parallel trainer."""

from earnest.client.parallel.worker import main

if __name__ == "__main__":
    main()
