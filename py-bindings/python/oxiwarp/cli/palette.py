"""Colours for all pictures: the palette of Okabe and Ito.

Readers with any form of colour blindness can distinguish these colours.
"""

BLACK = "#000000"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
OKABE_ITO = (BLACK, ORANGE, SKY_BLUE, GREEN, YELLOW, BLUE, VERMILION, PURPLE)

__all__ = ["BLACK", "BLUE", "GREEN", "OKABE_ITO", "ORANGE", "PURPLE", "SKY_BLUE", "VERMILION", "YELLOW"]
