"""What a page is made of, by kind."""

from __future__ import annotations

from reverie.report.blocks import Chart


def blocks(chapter, kind):
    return [block for part in chapter.parts for block in part.blocks if isinstance(block, kind)]


def charts(chapter):
    return {chart.title: chart for chart in blocks(chapter, Chart)}
