"""Evidence of NVIDIA, AMD and AWS."""
