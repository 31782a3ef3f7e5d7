"""The page of an analysis: one HTML file that asks for nothing from anywhere.

write        page and figures into files
page         the HTML; `charts`: the figures; `rows`: what they show
"""
