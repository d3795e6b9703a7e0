"""A tool's result, with its images and pages."""
