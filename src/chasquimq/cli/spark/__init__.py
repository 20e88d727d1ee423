"""`chasqui spark`: what runs on Spark beside the pipeline."""
