"""`python -m earnest.training.parallel` under torchrun: one process of a parallel trainer."""

from earnest.training.parallel.worker import main

if __name__ == "__main__":
    main()
