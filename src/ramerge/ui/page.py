"""The page of `ramerge ui`: its tabs around one recipe, and its theme."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import gradio as gr

from ramerge import __version__
from ramerge.ui import agents, choose, compare, look, merge, search, share
from ramerge.ui.desk import PRIVATE, Desk

_FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}


def build_page(desk: Desk) -> gr.Blocks:
    """Build the page with all tabs. Nothing is read until a browser opens it."""
    with gr.Blocks(title="ramerge", analytics_enabled=False, fill_width=True) as page:
        page.load(_keep_stream_open, None, None, concurrency_limit=None, **PRIVATE)  # before all other events
        gr.HTML(f"<h1>ramerge</h1><p>Merge RL-trained agents of one base model into one model. {__version__}</p>")
        size = {"lines": 12, "max_lines": 60, "wrap_lines": True}
        recipe = gr.Code(desk.start, language="yaml", label="Recipe", interactive=True, render=False, **size)
        with gr.Tabs() as tabs:
            with gr.Tab("Agents", id="agents"):
                models = agents.build(desk, page, recipe)
                _next_tab_button(tabs, "look", "Look: what RL changed in them")
            with gr.Tab("Look", id="look"):
                look.build(desk, recipe)
                _next_tab_button(tabs, "choose", "Choose: by prompts, or a method and its parameters")
            with gr.Tab("Choose", id="choose"):
                searched = None
                if not desk.public:
                    with gr.Accordion("Find the best merge by a few prompts", open=False):
                        searched = search.build(desk, recipe)
                choose.build(desk, page, recipe, models, searched.choice if searched else None)
                _next_tab_button(tabs, "merge", "Merge: what is chosen")
            with gr.Tab("Merge", id="merge"):
                merge.build(desk, page, recipe)
                _next_tab_button(tabs, "compare", "Compare: the merge with base and agents")
            with gr.Tab("Compare", id="compare") as tab:
                compare.build(desk, recipe, tab)
                _next_tab_button(tabs, "share", "Share: card, report, upload and distillation")
            with gr.Tab("Share", id="share") as tab:
                share.build(desk, tab, searched.prompts if searched else None)
        page.unload(desk.forget)
    return page.queue(default_concurrency_limit=4, max_size=64, api_open=False)


def _next_tab_button(tabs: gr.Tabs, tab: str, text: str) -> None:
    """Add a button at the end of a tab that opens another tab."""
    gr.Button(f"Next: {text}", size="sm").click(lambda: gr.Tabs(selected=tab), None, tabs, **PRIVATE)


async def _keep_stream_open() -> AsyncIterator[None]:
    """An action that never ends, so that the stream of all events stays open.

    Gradio closes a stream when no event is left, and loses an event that begins at this moment.
    """
    while True:
        yield
        await asyncio.sleep(60)


def theme() -> gr.themes.Base:
    """Return the page's theme: system fonts, so that nothing is downloaded, and readable colors."""
    default = gr.themes.Default(primary_hue="blue", secondary_hue="blue", neutral_hue="slate", **_FONTS)
    return default.set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        block_label_text_color_dark="*neutral_200",
        block_title_text_color="*neutral_700",
        block_title_text_color_dark="*neutral_200",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
        color_accent="*primary_700",
        color_accent_soft_dark="*neutral_700",
        link_text_color="*primary_700",
        link_text_color_dark="*primary_300",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
    )
