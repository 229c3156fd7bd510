"""What is written in a figure."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def texts_of(figure):
    """What is written in a figure, and where, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    scales = [scale for axis in figure.axes for scale in (axis.xaxis, axis.yaxis)]
    outside = {
        tick.label1
        for scale in scales
        for tick, at in zip(scale.get_major_ticks(), scale.get_majorticklocs(), strict=True)
        if not min(scale.get_view_interval()) <= at <= max(scale.get_view_interval())
    }
    written = [
        text
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and text not in outside
    ]
    return {text: text.get_window_extent(canvas.get_renderer()) for text in written}


def words_of(figure):
    return [text.get_text() for text in texts_of(figure)]


def assert_tidy(figure):
    """Nothing sticks out of the figure, and no two texts overlap."""
    boxes = texts_of(figure)
    page = figure.bbox
    for text, box in boxes.items():
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()
        assert box.y0 >= page.y0 and box.y1 <= page.y1, text.get_text()
    placed = list(boxes.items())
    for number, (text, box) in enumerate(placed):
        for other, second in placed[number + 1 :]:
            touching = min(box.x1, second.x1) - max(box.x0, second.x0) > 1
            touching = touching and min(box.y1, second.y1) - max(box.y0, second.y0) > 1
            assert not touching, (text.get_text(), other.get_text())
