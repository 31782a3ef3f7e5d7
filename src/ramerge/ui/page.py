"""The page: its tabs, one after another, around one recipe."""

from __future__ import annotations

import gradio as gr

from ramerge.foundation.version import __version__
from ramerge.ui import agents, choose, compare, look, run, share, views
from ramerge.ui.desk import Desk

_FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}


def build_page(desk: Desk) -> gr.Blocks:
    """All tabs. Nothing is read before a browser asks."""
    with gr.Blocks(title="ramerge", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(f"<h1>ramerge</h1><p>Merge RL-trained agents of one base model into one model. {__version__}</p>")
        recipe = gr.Code(
            desk.start, language="yaml", label="Recipe", interactive=True, lines=12, max_lines=40, render=False
        )
        with gr.Tabs():
            with gr.Tab("Agents", id="agents"):
                models = agents.build(desk, page, recipe)
            with gr.Tab("Look", id="look"):
                look.build(desk, recipe)
            with gr.Tab("Choose", id="choose"):
                choose.build(desk, page, recipe, models)
            with gr.Tab("Run", id="run"):
                run.build(desk, page, recipe)
            with gr.Tab("Compare", id="compare"):
                compare.build(desk, recipe)
            with gr.Tab("Share", id="share"):
                share.build(desk, recipe)
        page.unload(desk.forget)
    return page.queue(default_concurrency_limit=4, max_size=64, api_open=False)


def theme() -> gr.themes.Base:
    """Gradio's own, in fonts that every system has: nothing is fetched."""
    return gr.themes.Default(primary_hue="blue", secondary_hue="blue", neutral_hue="slate", **_FONTS)


def head() -> str:
    """Styles for what reports and this page have in common."""
    return views.styles()
