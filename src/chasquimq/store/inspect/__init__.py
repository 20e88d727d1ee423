"""Questions about queues and jobs; nothing here moves a job."""
