"""ramerge as a Space of the Hugging Face Hub; see README.md."""

from ramerge.ui.space import serve_space

serve_space()
