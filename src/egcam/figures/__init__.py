"""Figures for papers: pure drawing functions on explanations, curves and tables."""
