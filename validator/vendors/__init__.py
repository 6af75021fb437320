"""Evidence of other vendors, checked off chain: NVIDIA GPUs and their service, AMD SEV-SNP, AWS Nitro."""
