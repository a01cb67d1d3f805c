// Several runs side by side: `ortrain compare`.
'use strict';
(() => {
  const data = DATA(), page = document.getElementById('page');
  const colour = i => COLOURS[i % COLOURS.length];
  page.replaceChildren(el('header', {}, el('h1', {}, `${data.runs.length} runs`), el('div', {class: 'sub'}, data.runs.map(r => r.name).join(', '))));
  const grid = el('div', {class: 'grid'});
  page.append(grid);
  const rows = data.rows;
  grid.append(card('Table', 'wide', el('div', {class: 'scroll'}, el('table', {}, el('tbody', {},
    el('tr', {}, el('th', {}, ''), data.runs.map((r, i) => el('th', {}, el('i', {style: `display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px;background:${colour(i)}`}), r.name))),
    rows.map(row => el('tr', {}, el('th', {}, row.name), row.values.map((v, i) => el('td', {class: row.best === i ? 'right' : ''}, v)))))))));
  for (const plot of data.plots)
    grid.append(curves(plot.curves.map(c => ({name: data.runs[c.run].name, colour: colour(c.run), points: c.points, dots: plot.dots})),
      {title: plot.title, size: plot === data.plots[0] ? 'wide' : 'half', height: plot === data.plots[0] ? 320 : 220, tools: !plot.dots, smooth: plot.smooth ? 0.85 : 0}));
  page.append(el('footer', {}, `ortrain ${data.version}`));
})();
