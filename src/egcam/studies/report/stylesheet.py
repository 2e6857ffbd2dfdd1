"""How the report's web page looks: the demo page's colours, with tables that scroll in their own frame."""

STYLE = """
:root { color-scheme: light dark; --page: #fafafa; --card: #ffffff; --ink: #1a1c20; --faint: #5c6370;
        --line: #e2e5ea; --bar: #31688e; --note: #eef4f8; --warn: #fdf1e3; --warned: #b45309; --ours: #fff5ee;
        --good: #00694c; --bad: #a8321e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14161a; --card: #1e2127; --ink: #e8eaed; --faint: #a0a7b4; --line: #31353d; --bar: #5ec4b6;
          --note: #1f2b33; --warn: #33270f; --warned: #f0a94b; --ours: #33261d; --good: #5fd3ae; --bad: #ff9d8a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 3rem 0 .25rem; padding-top: .5rem; border-top: 1px solid var(--line);
     overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p, ul { margin: .25rem 0 1rem; max-width: 50rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
li { margin: .2rem 0; }
a { color: var(--bar); }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--card); padding: .4rem .8rem; z-index: 9; }
:focus-visible { outline: 3px solid var(--bar); outline-offset: 2px; }
.note, .warn { background: var(--note); border-left: 4px solid var(--bar); padding: .6rem .9rem; border-radius: 4px; }
.warn { background: var(--warn); border-left-color: var(--warned); }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; margin: 1rem 0; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr); gap: .3rem 1rem; margin: 1rem 0;
     background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
     font-size: .9375rem; }
dt { color: var(--faint); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .75rem 0;
          background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; font-size: .9rem; min-width: 100%; }
caption { text-align: left; padding: .5rem .75rem; color: var(--faint); font-size: .875rem; }
caption span { position: sticky; left: .75rem; display: inline-block; max-width: min(60rem, calc(100vw - 4rem)); }
abbr { text-decoration: none; }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 1px solid var(--line); font-weight: 600; vertical-align: bottom; }
th[scope=row], thead th:first-child { text-align: left; position: sticky; left: 0; background: var(--card);
  font-weight: 400; }
td.text { text-align: left; }
tr.ours > *, tr.ours > th[scope=row] { background: var(--ours); }
tr.ours > th[scope=row] { font-weight: 600; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
td u { text-underline-offset: 3px; }
td small, tr.counts > * { color: var(--faint); }
.ahead { color: var(--good); } .behind { color: var(--bad); }
figure { margin: 1rem 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
figure.plot { padding: .75rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 0 1rem;
         align-items: start; }
img { display: block; width: 100%; height: auto; }
.sideways { overflow-x: auto; }
.sideways img { min-width: 46rem; }
figcaption { padding: .4rem .6rem .5rem; font-size: .875rem; line-height: 1.35; overflow-wrap: anywhere; }
figure.plot figcaption { color: var(--faint); padding: .6rem 0 0; }
figcaption span, .faint { color: var(--faint); font-size: .8125rem; }
figcaption span { display: block; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .6rem;
        margin: .5rem 0 1.5rem; }
.maps figure { margin: 0; }
.maps figure.ours { outline: 3px solid #d55e00; outline-offset: -1px; }
.blank { aspect-ratio: 1; display: grid; place-items: center; color: var(--faint); background: var(--line); }
details { border: 1px solid var(--line); border-radius: 8px; background: var(--card); margin: .4rem 0; }
summary { cursor: pointer; padding: .5rem .9rem; overflow-wrap: anywhere; }
details .scroll { border: 0; margin: 0; }
@media (max-width: 34rem) {
  dl { grid-template-columns: 1fr; gap: 0; } dt { margin-top: .5rem; font-size: .8125rem; }
  th, td { padding: .3rem .5rem; }
  th[scope=row], thead th:first-child { max-width: 9.5rem; white-space: normal; }
  .maps { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .4rem; } }
@media print { .skip, nav { display: none; } .scroll, .sideways { overflow: visible; } }
"""
